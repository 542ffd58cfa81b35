"""The compiled program: BMv2 JSON read, checked and turned into typed objects."""

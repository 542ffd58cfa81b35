"""One data-parallel group: what was collected, what it lacks, and when it goes on."""

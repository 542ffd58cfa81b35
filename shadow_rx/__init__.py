"""The shadow node: capture -> place -> complete -> apply -> publish; keeps a checkpoint of every iteration."""

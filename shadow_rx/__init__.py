"""The shadow node: capture -> place -> complete -> apply -> publish: a checkpoint of every iteration."""

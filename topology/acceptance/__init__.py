"""The acceptance test of the recovery contract: faults, alone and mixed, and what must hold whatever happens."""

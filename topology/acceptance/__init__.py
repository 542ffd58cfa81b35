"""The acceptance test of the recovery contract: runs with faults, alone and mixed, and checks of the contract."""

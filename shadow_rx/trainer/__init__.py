"""What the trainer tells over the side channel: checked, kept, and compared with the job's declarations."""

"""Many steps as one command: a study, or a published report reproduced."""

"""Is a training job healthy, slow or stuck, and which rank is to blame? Anybody's job, watched from outside."""

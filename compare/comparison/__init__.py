"""The head-to-head itself: plan, run, estimate, scaling, and a test of its own verdicts."""

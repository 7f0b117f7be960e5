"""Hangs: deadlocks found in source code (`concurrency`), and jobs that run and are stuck (`watch`)."""

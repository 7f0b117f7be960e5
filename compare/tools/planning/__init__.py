"""Which parallel mode pays: predicted, measured, and compared."""

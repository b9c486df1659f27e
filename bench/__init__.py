"""Measuring: the only source of performance figures in this project (dc-bench-repeatable); see README.md."""

"""What is measured, beside its peers and its limits: `python -m benchmarks [name ...]`.

Each benchmark checks its results before it tells a figure, runs ours and the peer in turns on the
same servers, and measures the physical limit beside them.
"""

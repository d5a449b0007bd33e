"""The benchmarks behind `slipway bench`: what a model costs beside its yardstick, and what it keeps of it."""

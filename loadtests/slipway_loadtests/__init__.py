"""Load tests of a running server, soak tests, and the model of fleets behind `slipway capacity`."""

"""The command `slipway imu`, which corrects and evaluates recordings of inertial sensors."""

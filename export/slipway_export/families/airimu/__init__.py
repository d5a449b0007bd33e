"""AirIMU: description, checkpoint layout and networks."""

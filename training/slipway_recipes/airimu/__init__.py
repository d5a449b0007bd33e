"""Recipe of the AirIMU demo checkpoint, trained on simulated sensors of bodies that rest and move."""

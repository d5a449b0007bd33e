"""How the demo checkpoint of AirIMU is made: simulated sensors on bodies that rest and move."""

"""Measurements behind `trunkline bench`. They print figures of this machine and the floor that it allows."""

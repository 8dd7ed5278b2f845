"""`trunkline ab`: both arms of a trial side by side, its ramp, and a policy in the shadow.

`cli` has the commands, `report` what they print.
"""

"""The demo behind ``make demo``: a chatbot's traffic through the gateway, under random and under prefix-aware routing.

`workload` makes the traffic, `fleet` the workers and the gateway, `replay` sends, `report` counts and judges, and
`run` is the whole. Needs the extra ``trunkline[demo]``.
"""

"""What a log of requests says about prefix-aware routing, before anything is deployed.

`spec` describes an analysis and its findings and runs it, `run` reads files with a bar that says how far it is,
`report` prints, `words` says advice in sentences, `page` draws, `cli` is the command line. The work is done in
`rust/sim/src/analyze`.
"""

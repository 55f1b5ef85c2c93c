"""A scripted run that is disturbed at every point there is, and a judge of what is left of it.

`cast` has the model, the tools and the tasks, `client` one life of a process that works on the run, `notes` what the
outside world saw of it, `judge` what must hold after every crash and at the end. `kennel` starts lives as processes.
"""

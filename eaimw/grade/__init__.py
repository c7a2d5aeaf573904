"""The grader: seven steps for anyone's `breaker.py` and `relay.py`, each passed or failed with a reason and a hint.

It is independent of what it grades: nothing here imports the hub, its codes or its breaker. A breaker is loaded
by its path in a process of its own, under a fake clock; a relay is run as a process against simulated targets.

    steps.py          what the steps are, and what a verdict is
    breaker_steps.py  steps 1 and 2: stories told to a breaker
    story.py          a breaker under a fake clock, and a race of threads
    breaker_child.py  the process in which those run
    relay_steps.py    steps 3 to 7: stories told to a relay
    log_step.py       step 6, the log
    scene.py          a relay between the grader and its targets
    driver.py         how the steps speak to a relay: its process, what was sent and came back
    json_lines.py     through its standard input and output
    over_http.py      through HTTP
    targets.py        the back-ends that a relay under grading calls
    targets_child.py  the process in which those live
    grade.py          which steps, at the same time, in order
"""

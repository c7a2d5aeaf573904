"""For all tests."""

import signal

# A run in the background of a shell inherits SIGINT ignored, and so would the programs that tests start and signal.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

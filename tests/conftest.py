"""For all tests."""

import signal
from collections.abc import Iterator

import pytest
from hubs import LOOPS, nothing_left

# A run in the background of a shell inherits SIGINT ignored, and so would the programs that tests start and signal.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def complaints(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """The test leaves no socket behind, and asyncio has nothing to complain of."""
    with nothing_left():
        yield
    assert [record.message for record in caplog.records if record.name == "asyncio"] == []


@pytest.fixture(params=LOOPS)
def loop(request: pytest.FixtureRequest) -> str:
    """The name of an event loop to run on; each in turn."""
    name: str = request.param
    return name

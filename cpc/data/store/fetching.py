"""Files behind URLs, read whole and checked, by whatever file system `fsspec` knows the URL's protocol from."""

import time
from collections.abc import Callable
from typing import Any

NUM_ATTEMPTS = 10  # two minutes together: a server that is started again is waited for
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.5, 30.0
SILENCE_SECONDS = 30.0  # of an HTTP server, until it is asked again
_BLOCK_BYTES = 2**20


def is_url(source: object) -> bool:
    """Whether a source names a protocol, as `https://HOST/corpus`; otherwise it is a path."""
    return "://" in str(source)


def fetch(url: str, most_bytes: int, check: Callable[[bytes], object]) -> bytes:
    """The content of a file; after a failure it is asked for again, each time after twice the wait.

    Args:
        url: of any protocol that fsspec knows.
        most_bytes: that it may have; the rest of a longer one is not read.
        check: raises a ValueError on content that was cut off or is damaged, which is asked for again.

    Raises:
        ValueError: if the protocol is unknown, or needs a package that is not installed.
        FileNotFoundError: if the server says that there is no such file.
        ConnectionError: naming the URL, the attempts and the last reason.
    """
    wait, started, reason = FIRST_WAIT_SECONDS, time.monotonic(), ""
    for attempt in range(NUM_ATTEMPTS):
        if attempt:
            time.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT_SECONDS)
        files, place, options = _file_system(url)
        try:
            with files.open(place, "rb", **options) as stream:
                content = _read(stream, most_bytes)
            check(content)
            return content
        except FileNotFoundError as error:
            raise FileNotFoundError(f"there is no {url}") from error
        except Exception as error:  # every file system has errors of its own
            reason = f"{type(error).__name__}: {error}".rstrip(": ")
    raise ConnectionError(
        f"{url} could not be read: {NUM_ATTEMPTS} attempts in {time.monotonic() - started:.0f} s failed, the last one "
        f"with {reason}. Go on from the last checkpoint when it can be reached again"
    )


def _file_system(url: str) -> tuple[Any, str, dict[str, Any]]:
    """The file system of a URL, the file's place in it, and how it is opened; fsspec keeps one per process."""
    import fsspec

    settings: dict[str, Any] = {}
    options: dict[str, Any] = {}
    if url.startswith(("http://", "https://")):
        from aiohttp import ClientTimeout

        # The whole file in one request: a size, whatever it is, spares the question for it.
        options = {"block_size": 0, "size": 1}
        timeout = ClientTimeout(total=None, sock_connect=SILENCE_SECONDS, sock_read=SILENCE_SECONDS)
        settings = {"client_kwargs": {"timeout": timeout}}
    try:
        files, place = fsspec.core.url_to_fs(url, **settings)
    except (ImportError, ValueError) as error:
        raise ValueError(f"{url} cannot be opened: {error}") from error
    return files, place, options


def _read(stream: Any, most_bytes: int) -> bytes:
    blocks, left = [], most_bytes + 1
    while left and (block := stream.read(min(left, _BLOCK_BYTES))):
        blocks.append(block)
        left -= len(block)
    if not left:
        raise ValueError(f"more than the {most_bytes} bytes that it should have")
    return b"".join(blocks)

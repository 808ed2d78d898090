"""What the terminal and the log show while files are downloaded."""

from __future__ import annotations

import io

from rich.console import Console

from isotherm.cli.download_progress import DownloadProgress


def test_downloads_are_a_line_each_in_a_log_and_bars_on_a_terminal() -> None:
    for terminal in (False, True):
        stream = io.StringIO()
        with DownloadProgress(Console(file=stream, force_terminal=terminal, width=100)) as progress:
            for name in ("a.gz", "b.gz"):
                for done in (500, 2_000):
                    progress(name, done, 2_000)
        if terminal:
            assert [task.completed for task in progress._bar.tasks] == [2_000, 2_000]
            assert "a.gz" in stream.getvalue()
        else:
            assert stream.getvalue().splitlines() == ["a.gz: 2,000 bytes downloaded", "b.gz: 2,000 bytes downloaded"]

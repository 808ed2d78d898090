"""Views are found by name, in rooms that come later."""

from __future__ import annotations

from isotherm.core import views


def test_every_view_of_the_package_is_a_function_that_there_is() -> None:
    for name in ("table", "to_pandas", "plot", "report", "html", "diagnosis"):
        assert callable(views.view(name))

"""What the metadata of distributions say otherwise than pyproject.toml."""

import re
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Metadata(BuildHookInterface):
    """Completes the metadata, from which package indexes make a page."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Give the licence as an SPDX expression, and the README absolute links.

        pyproject.toml cannot have the expression: flwr 1.40 to 1.42 refuse it in
        bundles of format 1. Hatchling has no public way to set either.
        """
        core = self.metadata.core
        core._license, core._license_expression = "", "Apache-2.0"
        folder = f"{core.urls['Repository']}/blob/v{self.metadata.version}/"
        core._readme = re.sub(r"\]\((?!\w+:|#)", f"]({folder}", core.readme)

"""A topic on its way from producers to files and groups, with real logs, real counters and the real judge."""

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in ("cells", "data_cells", "process_cells")))

"""One contract for every switch target: the same states, the same frames, the same answers."""

import pytest

pytest.register_assert_rewrite("tests.switch_contract.checks")

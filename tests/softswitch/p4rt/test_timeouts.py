"""Tables that support idle timeouts: this target has none, and says so where one is asked for."""

from __future__ import annotations

import pytest
from finsy.proto import U128, p4i, p4r
from google.protobuf import text_format

from softswitch.p4rt import BatchError
from tests.softswitch.p4rt_client import DEVICE_ID, INSERT, PROGRAMS, Call, exact
from tests.softswitch.p4rt_rig import held_device


def test_a_table_that_supports_idle_timeouts_takes_entries_without_one() -> None:
    device = held_device()
    info = text_format.Parse((PROGRAMS / "timeout.p4info.txtpb").read_text(), p4i.P4Info())
    config = p4r.ForwardingPipelineConfig(p4info=info, p4_device_config=(PROGRAMS / "timeout.json").read_bytes())
    device.set_pipeline(
        Call(device_id=DEVICE_ID, election_id=U128.encode(1), action=Call.VERIFY_AND_COMMIT, config=config)
    )
    action = next(item.preamble.id for item in info.actions if item.preamble.alias == "NoAction")

    def insert(value: int, timeout_ns: int) -> None:
        entry = p4r.TableEntry(
            table_id=info.tables[0].preamble.id,
            match=[exact(1, bytes([value]))],
            action=p4r.TableAction(action=p4r.Action(action_id=action)),
            idle_timeout_ns=timeout_ns,
        )
        update = p4r.Update(type=INSERT, entity=p4r.Entity(table_entry=entry))
        device.write(p4r.WriteRequest(device_id=DEVICE_ID, election_id=U128.encode(1), updates=[update]))

    insert(1, 0)
    with pytest.raises(BatchError) as caught:
        insert(2, 10**9)
    assert "TestIngress.t" in str(caught.value.results[0])
    assert "idle timeout" in str(caught.value.results[0])

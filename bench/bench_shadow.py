"""How fast a shadow node keeps up: placing replicas, applying the optimizer, encoding a recovery point.

One thread, no sockets, CPU time. Replicas of one step of a synthetic model are built first, then handed to the
core as a capture would. Run `python bench/bench_shadow.py --json` for machine-readable results.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

from checkmate_common.recovery.point import pack_tensors
from checkmate_common.recovery.state import inventory_digest
from checkmate_common.sidechannel import side_channel_pb2 as pb
from checkmate_common.stream.dtypes import DType
from checkmate_common.stream.frame import FrameHeader, crc32c
from checkmate_common.stream.layout import Layout, ParamSpec, build_layout
from checkmate_common.stream.ring import Phase
from checkmate_common.stream.schedule import step_plan
from jobspec.model import Flow, Job
from nccl_emu.training.framework_state import FrameworkState
from packets.segment import FLAGS_OF, Segment
from packets.template import FrameTemplate
from shadow_rx.core import ShadowCore
from shadow_rx.publish.snapshot import encode
from shadow_rx.status.events import Event, StepReplicated

RANKS = 4
PORT = 50000


@dataclass(frozen=True)
class Result:
    """One measurement.

    Attributes:
        case: what was measured.
        mtu: largest IP packet in bytes, None where packets do not matter.
        seconds: CPU time for one step of the model.
        megabytes_per_s: gradient (or state) bytes per second, in 10**6.
        packets_per_s: replicas per second, None where there are none.
    """

    case: str
    mtu: int | None
    seconds: float
    megabytes_per_s: float
    packets_per_s: float | None


def make_job(mtu: int) -> Job:
    """Return a job of one ring of `RANKS` ranks and one shadow node."""
    hosts = [
        {"name": f"r{i}", "port": i + 1, "mac": f"02:00:00:00:01:0{i}", "ip": f"10.0.0.{i + 1}"} for i in range(RANKS)
    ]
    shadow = {"name": "sh0", "port": 9, "mac": "02:00:00:00:02:00", "ip": "10.0.1.1"}
    group = {"name": "dp0", "ring": [host["name"] for host in hosts], "shadows": ["sh0"]}
    return Job.model_validate(
        {"version": 1, "name": "bench", "switch": {"ports": 9}, "network": {"mtu": mtu}, "hosts": hosts,
         "shadows": [shadow], "groups": [group]}
    )  # fmt: skip


def make_layout(megabytes: int) -> Layout:
    """Return a layout of square float32 parameters, in buckets as DDP makes them (25 MiB)."""
    params = [ParamSpec(f"layer.{i}", (512, 512), DType.FLOAT32) for i in range(megabytes)]
    return build_layout(params, 25 << 20)


def replicas(job: Job, layout: Layout, step: int) -> list[bytes]:
    """Return one step's replicas as the switch emits them, flow by flow."""
    rng = random.Random(step)
    buckets = [rng.randbytes(bucket.nbytes) for bucket in layout.buckets]
    frames: list[bytes] = []
    for flow in job.flows:
        frames += _flow_replicas(job, flow, layout, step, buckets)
    return frames


def _flow_replicas(job: Job, flow: Flow, layout: Layout, step: int, buckets: Sequence[bytes]) -> list[bytes]:
    node = job.shadow("sh0")
    template = FrameTemplate(flow.source.mac, node.mac, str(flow.source.ip), str(node.ip))
    plan = step_plan(flow.shape, layout)
    frames: list[bytes] = []
    for slot in plan.frames:
        if slot.phase is not Phase.ALL_GATHER or slot.hop:
            continue
        payload = buckets[slot.bucket][slot.byte_offset : slot.byte_offset + slot.payload_bytes]
        header = FrameHeader(
            job.id, flow.group.id, 1, flow.channel, step, layout.version, slot.bucket, slot.phase, slot.hop,
            slot.chunk, flow.rank, slot.dtype, slot.element_offset, len(payload), crc32c(payload),
        )  # fmt: skip
        data = header.pack() + payload
        position = (step - 1) * plan.length + slot.start
        for start in range(0, len(data), job.mss):
            part = data[start : start + job.mss]
            sequence = (position + start + 1) % (1 << 32)
            segment = Segment(PORT, node.base_port + flow.id, sequence, 0, FLAGS_OF[0x10], 0, part, job.dscp.primary)
            frames.append(template.build(segment))
    return frames


@dataclass(frozen=True)
class Told:
    """What the records of all ranks and steps have in common.

    Attributes:
        options: hyperparameters of the parameter group, as JSON.
        objects: every object of a rank's state, once the optimizer has made a step.
    """

    options: str
    objects: list[pb.StateObjectInfo]


def attach(core: ShadowCore, layout: Layout) -> Told:
    """Attach a model with AdamW and upload its state; return what its records tell."""
    params = {slot.param.name: torch.nn.Parameter(torch.zeros(slot.param.shape)) for slot in layout.slots}
    adamw = torch.optim.AdamW(list(params.values()))
    state = FrameworkState(dict(params), params, adamw, [list(params)], sections={}, raw={})
    options = json.dumps({key: value for key, value in adamw.param_groups[0].items() if key != "params"})
    optimizer = pb.OptimizerDescription(name="AdamW", groups=[pb.ParamGroup(params=list(params), options_json=options)])
    replica = core.group("dp0")
    replica.attach(
        pb.AttachRequest(
            job=core.job.name,
            group="dp0",
            epoch=1,
            first_step=1,
            layout_json=layout.to_json(),
            optimizer=optimizer,
            state_objects=state.inventory(),
        )
    )
    replica.upload(1, pack_tensors({f"param/{name}": param.detach() for name, param in params.items()}))
    for flow in core.job.flows:
        replica.open_flow(pb.OpenFlowRequest(group="dp0", epoch=1, flow_id=flow.id, source_port=PORT))
    for param in params.values():
        param.grad = torch.zeros_like(param)
    adamw.step()
    return Told(options, state.inventory())


def record(core: ShadowCore, step: int, told: Told) -> list[Event]:
    """Send all ranks' records of a step: the last one makes the core apply it."""
    replica = core.group("dp0")
    for rank in range(RANKS):
        replica.record(
            pb.StepRecord(
                group="dp0",
                epoch=1,
                step=step,
                rank=rank,
                layout_version=1,
                group_options_json=[told.options],
                loss=1.0,
                state_digest=inventory_digest(told.objects),
                state_objects=told.objects,
            )
        )
    return replica.ledger.take_events()


def measure(megabytes: int, steps: int) -> list[Result]:
    """Run `steps` steps of a model of `megabytes` for each MTU; each result is the best step's."""
    layout = make_layout(megabytes)
    results: list[Result] = []
    for mtu in (1500, 9000):
        job = make_job(mtu)
        core = ShadowCore(job, "sh0")
        told = attach(core, layout)
        place: list[float] = []
        apply: list[float] = []
        write: list[float] = []
        packets = state = 0
        for step in range(1, steps + 1):
            frames = replicas(job, layout, step)
            packets = len(frames)
            start = time.process_time()
            for frame in frames:
                core.on_frame(frame, 0.0)
            placed = time.process_time()
            (event,) = record(core, step, told)
            applied = time.process_time()
            assert isinstance(event, StepReplicated), event
            state = len(encode(event.snapshot).state)
            write.append(time.process_time() - applied)
            place.append(placed - start)
            apply.append(applied - placed)
        size = layout.nbytes / 1e6
        results.append(Result("place replicas", mtu, min(place), size / min(place), packets / min(place)))
        if mtu == 9000:
            results.append(Result("apply AdamW, copy state", None, min(apply), size / min(apply), None))
            results.append(Result("encode state", None, min(write), state / 1e6 / min(write), None))
    return results


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=16, help="size of the gradient in MiB")
    parser.add_argument("--steps", type=int, default=4, help="steps for each MTU")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    results = measure(options.megabytes, options.steps)
    if options.json:
        print(json.dumps([asdict(result) for result in results], indent=1))
        return
    print(f"{'case':<26}{'MTU':>6}{'ms/step':>10}{'MB/s':>9}{'packets/s':>12}")
    for result in results:
        mtu = "" if result.mtu is None else str(result.mtu)
        packets = "" if result.packets_per_s is None else f"{result.packets_per_s:,.0f}"
        rates = f"{result.seconds * 1e3:>10.1f}{result.megabytes_per_s:>9.0f}{packets:>12}"
        print(f"{result.case:<26}{mtu:>6}{rates}")


if __name__ == "__main__":
    main()

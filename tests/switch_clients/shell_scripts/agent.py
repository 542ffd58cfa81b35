"""Runs in p4runtime-shell's environment: does with the shell's own API what it reads, one JSON request a line.

    python agent.py ADDRESS '{"election_id": [0, 1], "config": ["P4INFO", "DEVICE_CONFIG"]}'

A request is ["command", arguments...]; the answer is {"value": ...} or {"error": ...}. What the shell itself prints
comes in between, on lines of its own.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import grpc
import p4runtime_sh.shell as sh
from google.protobuf import text_format
from google.rpc import code_pb2, status_pb2
from p4.v1 import p4runtime_pb2
from p4runtime_sh.p4runtime import P4RuntimeException, P4RuntimeWriteException

DEVICE_ID = 1


def table_entry(plain, params="params"):
    """Return {"table", "match", "action", "params"} as an entry of the shell."""
    entry = sh.TableEntry(plain["table"])
    entry.match.set(**{name: str(value) for name, value in plain["match"].items()})
    if plain.get("action"):
        entry.action = sh.Action(plain["action"])
        entry.action.set(**{name: str(value) for name, value in plain[params].items()})
    return entry


def plain_entry(entry):
    """Return an entry of the shell as numbers."""
    message = entry.msg()
    match = {}
    for field in message.match:
        match[sh.context.get_mf_name(entry.name, field.field_id)] = int.from_bytes(field.exact.value, "big")
    action = message.action.action
    name = sh.context.get_name_from_id(action.action_id)
    params = {sh.context.get_param_name(name, p.param_id): int.from_bytes(p.value, "big") for p in action.params}
    found = {"table": entry.name, "match": match, "action": name, "params": params}
    if message.HasField("counter_data"):
        found["counter"] = [message.counter_data.packet_count, message.counter_data.byte_count]
    return found


class Commands:
    """Each method is a command."""

    def __init__(self):
        self._digests = None

    def insert(self, plain):
        table_entry(plain).insert()

    def modify(self, plain):
        table_entry(plain, "changed").modify()

    def delete(self, plain):
        table_entry(plain).delete()

    def read(self, table, match=None, counted=False):
        entry = sh.TableEntry(table)
        entry.match.set(**{name: str(value) for name, value in (match or {}).items()})
        if counted:
            entry.counter_data.packet_count = 0
        return [plain_entry(found) for found in entry.read()]

    def values(self, table):
        """Byte strings of all keys and parameters, in hexadecimal."""
        found = []
        for entry in sh.TableEntry(table).read():
            message = entry.msg()
            found += [field.exact.value.hex() for field in message.match]
            found += [param.value.hex() for param in message.action.action.params]
        return found

    def default(self, table):
        return [plain_entry(found) for found in sh.TableEntry(table)(is_default=True).read()]

    def set_default(self, table, action=None, params=None):
        entry = sh.TableEntry(table)(is_default=True)
        if action is not None:
            entry.action = sh.Action(action)
            entry.action.set(**{name: str(value) for name, value in params.items()})
        entry.modify()

    def group(self, kind, number, replicas=()):
        entry = sh.MulticastGroupEntry(number)
        for port, rid in replicas:
            entry.add(port, rid)
        getattr(entry, kind)()

    def groups(self, number=0):
        found = sh.MulticastGroupEntry(number).read()
        return {str(group.group_id): sorted([copy.port, copy.instance] for copy in group.replicas) for group in found}

    def digest(self, kind, name, **config):
        entry = sh.DigestEntry(name)
        for field, value in config.items():
            setattr(entry, field, value)
        getattr(entry, kind)()

    def digest_config(self, name):
        return [[d.max_timeout_ns, d.max_list_size, d.ack_timeout_ns] for d in sh.DigestEntry(name).read()]

    def listen(self):
        self._digests = sh.DigestList()

    def digests(self, patience_s):
        """Members of the messages that arrive until some have; the shell acknowledges them itself."""
        for _ in range(int(patience_s / 0.25)):
            lists = list(self._digests.sniff(timeout=0.25))
            if lists:
                return [
                    [int.from_bytes(member.bitstring, "big") for member in message.struct.members]
                    for one in lists
                    for message in one.digest.data
                ]
        return []

    def counters(self, name, index=None):
        entry = sh.CounterEntry(name)
        entry.index = index
        return [[found.index, found.packet_count, found.byte_count] for found in entry.read()]

    def reset_counter(self, name, index):
        entry = sh.CounterEntry(name)(index=index, packet_count=0)
        entry.byte_count = 0
        entry.modify()

    def direct_counters(self, name, plain=None):
        entry = sh.DirectCounterEntry(name)
        if plain is not None:
            entry.table_entry = table_entry(dict(plain, action=None))
        return [[found.packet_count, found.byte_count] for found in entry.read()]

    def reset_direct_counter(self, name, plain):
        entry = sh.DirectCounterEntry(name)
        entry.table_entry = table_entry(dict(plain, action=None))
        entry.packet_count = 0
        entry.byte_count = 0
        entry.modify()

    def write_file(self, updates):
        """Send updates as a file with the shell's `Write`."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "write.txt"
            path.write_text(text_format.MessageToString(self._request(updates)))
            sh.Write(str(path))

    def batch(self, updates):
        """Send updates with the shell's stub; return the code of each."""
        request = self._request(updates)
        request.device_id = DEVICE_ID
        request.election_id.high, request.election_id.low = sh.client.election_id
        try:
            sh.client.stub.Write(request)
        except grpc.RpcError as error:
            data = dict(error.trailing_metadata())["grpc-status-details-bin"]
            details = status_pb2.Status.FromString(data).details
            codes = []
            for detail in details:
                p4_error = p4runtime_pb2.Error()
                assert detail.Unpack(p4_error)
                codes.append(code_pb2.Code.Name(p4_error.canonical_code))
            return codes
        return ["OK"] * len(request.updates)

    @staticmethod
    def _request(updates):
        request = p4runtime_pb2.WriteRequest()
        for kind, plain in updates:
            update = request.updates.add(type=p4runtime_pb2.Update.Type.Value(kind))
            update.entity.table_entry.CopyFrom(table_entry(plain).msg())
        return request

    def padded(self):
        """Byte strings as wide as their fields from now on: what the shell calls the legacy format."""
        sh.global_options["canonical_bytestrings"] = False

    def arbitration(self):
        """Wait for the switch's next word on who is primary; return its code and the highest election id."""
        message = sh.client.get_stream_packet("arbitration", timeout=20).arbitration
        return [code_pb2.Code.Name(message.status.code), [message.election_id.high, message.election_id.low]]

    def bid(self, high, low):
        """Bid again with another election id."""
        sh.client.election_id = (high, low)
        sh.client.handshake()

    def tables(self):
        return sorted(table.name for table in sh.P4Objects(sh.P4Type.table))

    def api_version(self):
        return sh.APIVersion()


def answer(commands, request):
    name, *arguments = request
    keywords = arguments.pop() if arguments and isinstance(arguments[-1], dict) and name == "digest" else {}
    try:
        return {"value": getattr(commands, name)(*arguments, **keywords)}
    except P4RuntimeWriteException as error:
        return {
            "error": [[index, code_pb2.Code.Name(e.canonical_code), e.message] for index, e in error.errors],
            "text": str(error),
        }
    except P4RuntimeException as error:
        return {"error": error.grpc_error.code().name, "text": str(error)}
    except grpc.RpcError as error:
        return {"error": error.code().name, "text": error.details()}


def main():
    options = json.loads(sys.argv[2])
    config = sh.FwdPipeConfig(*options["config"]) if options.get("config") else None
    sh.setup(DEVICE_ID, sys.argv[1], tuple(options["election_id"]), config=config, verbose=False)
    try:
        commands = Commands()
        print(json.dumps({"value": "ready"}), flush=True)
        for line in sys.stdin:
            print(json.dumps(answer(commands, json.loads(line))), flush=True)
    finally:
        sh.teardown()


main()

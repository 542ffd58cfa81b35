-- Wireshark dissector of Checkmate's frames: gradients over TCP, each chunk in frames with a header of their own.
--
-- Use:   wireshark -X lua_script:tools/checkmate.lua CAPTURE
--        tshark -X lua_script:tools/checkmate.lua -r CAPTURE -Y checkmate
-- or copy it to the folder that "About Wireshark - Folders - Personal Lua Plugins" names.
--
-- Connections are recognised by a frame header whose CRC32C is right, on any port, wherever in the stream the capture
-- begins. Frames are put together from as many segments as they take. After a gap it goes on at the next sound header.

-- Generated from jobspec/frame.py by `python -m tools.dissector`; do not edit between these lines.
local MAGIC = "CKMT"
local VERSION = 1
local HEADER_BYTES = 64
local PHASES = { [0] = "reduce scatter", [1] = "all gather" }
local DTYPES = { [1] = "float32", [2] = "float16", [3] = "bfloat16", [4] = "float64" }
local ITEMSIZES = { [1] = 4, [2] = 2, [3] = 2, [4] = 8 }
local FIELDS = {
    { name = "magic", label = "Magic", offset = 0, size = 4 },
    { name = "version", label = "Version", offset = 4, size = 1 },
    { name = "phase", label = "Phase", offset = 5, size = 1 },
    { name = "dtype", label = "Dtype", offset = 6, size = 1 },
    { name = "header_bytes", label = "Header bytes", offset = 7, size = 1 },
    { name = "job", label = "Job", offset = 8, size = 2 },
    { name = "group", label = "Group", offset = 10, size = 2 },
    { name = "channel", label = "Channel", offset = 12, size = 2 },
    { name = "bucket", label = "Bucket", offset = 14, size = 2 },
    { name = "hop", label = "Hop", offset = 16, size = 2 },
    { name = "chunk", label = "Chunk", offset = 18, size = 2 },
    { name = "rank", label = "Rank", offset = 20, size = 2 },
    { name = "reserved1", label = "Reserved1", offset = 22, size = 2 },
    { name = "step", label = "Step", offset = 24, size = 8 },
    { name = "layout_version", label = "Layout version", offset = 32, size = 4 },
    { name = "epoch", label = "Epoch", offset = 36, size = 4 },
    { name = "element_offset", label = "Element offset", offset = 40, size = 8 },
    { name = "payload_bytes", label = "Payload bytes", offset = 48, size = 4 },
    { name = "payload_crc", label = "Payload CRC32C", offset = 52, size = 4 },
    { name = "reserved2", label = "Reserved2", offset = 56, size = 4 },
    { name = "header_crc", label = "Header CRC32C", offset = 60, size = 4 },
}
-- End of what is generated.

local checkmate = Proto("checkmate", "Checkmate gradient frame")
checkmate.prefs.payload_crc = Pref.bool("Check the CRC32C of payloads", false, "Slow: it is computed in Lua")

local TYPES = { [1] = ProtoField.uint8, [2] = ProtoField.uint16, [4] = ProtoField.uint32, [8] = ProtoField.uint64 }
local VALUES = { phase = PHASES, dtype = DTYPES }
local fields = {}
for _, field in ipairs(FIELDS) do
    local abbreviation = "checkmate." .. field.name
    if field.name == "magic" then
        fields.magic = ProtoField.string(abbreviation, field.label)
    elseif field.name:find("crc") then
        fields[field.name] = TYPES[field.size](abbreviation, field.label, base.HEX)
    else
        fields[field.name] = TYPES[field.size](abbreviation, field.label, base.DEC, VALUES[field.name])
    end
end
local extra = {
    payload = ProtoField.bytes("checkmate.payload", "Payload"),
    elements = ProtoField.uint64("checkmate.elements", "Elements"),
    whole = ProtoField.bool("checkmate.whole", "All of it is in the capture"),
    crc_ok = ProtoField.bool("checkmate.payload_crc_ok", "Payload CRC32C is right"),
    skipped = ProtoField.bytes("checkmate.continuation", "Not a whole frame"),
}
local all = {}
for _, field in pairs(fields) do
    all[#all + 1] = field
end
for _, field in pairs(extra) do
    all[#all + 1] = field
end
checkmate.fields = all

local wrong_crc = ProtoExpert.new("checkmate.payload_crc.wrong", "Payload CRC32C is wrong", expert.group.CHECKSUM,
    expert.severity.ERROR)
local unsynced = ProtoExpert.new("checkmate.continuation.expert",
    "No frame header here: the capture begins within a frame, or lacks segments", expert.group.SEQUENCE, expert.severity.NOTE)
checkmate.experts = { wrong_crc, unsynced }

-- CRC32C (Castagnoli), RFC 3720 appendix B.4: reflected polynomial 0x82F63B78.
local band, bxor, rshift = bit.band, bit.bxor, bit.rshift
local CRC_TABLE = {}
for number = 0, 255 do
    local value = number
    for _ = 1, 8 do
        value = band(value, 1) == 1 and bxor(rshift(value, 1), 0x82F63B78) or rshift(value, 1)
    end
    CRC_TABLE[number] = value
end

local function crc32c(text)
    local value = 0xFFFFFFFF
    for i = 1, #text do
        value = bxor(rshift(value, 8), CRC_TABLE[band(bxor(value, text:byte(i)), 0xFF)])
    end
    return bxor(value, 0xFFFFFFFF) % 0x100000000
end

local AT = {}
for _, field in ipairs(FIELDS) do
    AT[field.name] = field
end

local function number_at(text, from, name)
    local value = 0
    for i = from + AT[name].offset, from + AT[name].offset + AT[name].size - 1 do
        value = value * 256 + text:byte(i)
    end
    return value
end

-- Whether a sound header begins at 1-based `from` of `text`.
local function header_at(text, from)
    return #text >= from + HEADER_BYTES - 1
        and text:sub(from, from + #MAGIC - 1) == MAGIC
        and number_at(text, from, "header_crc") == crc32c(text:sub(from, from + AT.header_crc.offset - 1))
        and number_at(text, from, "version") == VERSION
end

-- Where the next sound header begins, or what may be one when more bytes come (then `whole` is false).
local function next_header(text, from)
    local at = from
    while true do
        at = text:find(MAGIC, at, true)
        if at == nil then
            break
        elseif #text < at + HEADER_BYTES - 1 then
            return at, false
        elseif header_at(text, at) then
            return at, true
        end
        at = at + 1
    end
    for kept = math.min(#MAGIC - 1, #text - from + 1), 1, -1 do
        if text:sub(-kept) == MAGIC:sub(1, kept) then
            return #text - kept + 1, false
        end
    end
    return nil, false
end

local function name_of(names, value)
    return names[value] or tostring(value)
end

local function dissect_frame(tvb, text, at, size, pinfo, tree)
    local offset = at - 1
    local shown = tvb(offset, size)
    local function value(name)
        return number_at(text, at, name)
    end
    local element = ITEMSIZES[value("dtype")]
    local count = element and math.floor(value("payload_bytes") / element)
    local first = value("element_offset")
    local summary = string.format("step %d bucket %d %s hop %d chunk %d rank %d", value("step"), value("bucket"),
        name_of(PHASES, value("phase")), value("hop"), value("chunk"), value("rank"))
    if count then
        summary = summary .. string.format(" [%d, %d) %s", first, first + count, name_of(DTYPES, value("dtype")))
    end
    local branch = tree:add(checkmate, shown, "Checkmate frame: " .. summary)
    for _, field in ipairs(FIELDS) do
        branch:add(fields[field.name], tvb(offset + field.offset, field.size))
    end
    if count then
        branch:add(extra.elements, UInt64.new(count)):set_generated()
    end
    if size > HEADER_BYTES then
        branch:add(extra.payload, tvb(offset + HEADER_BYTES, size - HEADER_BYTES))
    end
    local whole = size == HEADER_BYTES + value("payload_bytes")
    branch:add(extra.whole, whole):set_generated()
    if checkmate.prefs.payload_crc and whole then
        local right = crc32c(text:sub(at + HEADER_BYTES, at + size - 1)) == value("payload_crc")
        branch:add(extra.crc_ok, right):set_generated()
        if not right then
            branch:add_proto_expert_info(wrong_crc)
        end
    end
    pinfo.cols.info:append(" | " .. summary)
end

local function skip(tvb, at, size, tree)
    local branch = tree:add(checkmate, tvb(at - 1, size), string.format("Checkmate: %d bytes of no whole frame", size))
    branch:add(extra.skipped, tvb(at - 1, size))
    branch:add_proto_expert_info(unsynced)
end

local function dissect(tvb, pinfo, tree)
    local text = tvb:raw()
    local at, length = 1, #text
    -- A segment cut by the snapshot length, or one whose successors are lost, is not waited for.
    local may_wait = pinfo.can_desegment > 0 and tvb:reported_length_remaining(0) <= length
    pinfo.cols.protocol = "CKMT"
    while at <= length do
        local header, whole = next_header(text, at)
        local skipped = (header or length + 1) - at
        if skipped > 0 then
            skip(tvb, at, skipped, tree)
            at = at + skipped
        end
        if at > length then
            return length
        end
        local size = whole and HEADER_BYTES + number_at(text, at, "payload_bytes")
        if size and at + size - 1 <= length then
            dissect_frame(tvb, text, at, size, pinfo, tree)
            at = at + size
        elseif may_wait then
            pinfo.desegment_offset = at - 1
            pinfo.desegment_len = size and at + size - 1 - length or DESEGMENT_ONE_MORE_SEGMENT
            return length
        elseif whole then
            dissect_frame(tvb, text, at, length - at + 1, pinfo, tree)
            return length
        else
            skip(tvb, at, length - at + 1, tree)
            return length
        end
    end
    return length
end

checkmate.dissector = dissect
checkmate:register_heuristic("tcp", function(tvb, pinfo, tree)
    local _, whole = next_header(tvb:raw(), 1)
    if not whole then
        return false
    end
    pinfo.conversation = checkmate
    -- Not checkmate.dissector(...): that is one more layer, which may not ask TCP for more bytes.
    dissect(tvb, pinfo, tree)
    return true
end)
DissectorTable.get("tcp.port"):add_for_decode_as(checkmate)

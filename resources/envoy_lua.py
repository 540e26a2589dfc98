"""The Lua that Envoy runs on each request: it writes `x-model`, by which the routes are found, and keeps the bodies.

What is kept goes into the dynamic metadata, and with it into the request's own entry of the access log: one message
tells all of a request. Envoy's external processing would open a stream for each (half a millisecond on two cores).
"""

# Where an entry's metadata holds a body, as base64: its strings are text. `SIZE` is of the body as it was.
REQUEST_BODY, ANSWER_BODY, BODY, SIZE = "trimtab.request", "trimtab.answer", "body", "bytes"
# A larger body is served like any other, but not copied; the observer counts it as not read.
LARGEST_COPY_BYTES = 4 * 1024 * 1024

# A client's own x-model is always removed: believed, it would send one model's requests by another model's split.
# In a protobuf the last field 1 wins, as it does in Triton, so all top-level fields are walked.
# A gRPC message compressed by its client (first byte 1) hides its name; its client is told to send it plain.
LUA = (
    f"local LARGEST = {LARGEST_COPY_BYTES}"
    + """
local SERVICE = "/inference.GRPCInferenceService/"
local ABOUT_A_MODEL = {ModelInfer = true, ModelReady = true, ModelMetadata = true, ModelConfig = true,
                       ModelStatistics = true}
local CHUNK = 4096

local function reader(body, size)
  local chunk, first = "", 0
  return function(at)
    if at < first or at >= first + #chunk then
      first, chunk = at, body:getBytes(at, math.min(CHUNK, size - at))
    end
    return chunk:byte(at - first + 1)
  end
end

local function varint(byte, at, size)
  local value, scale = 0, 1
  for i = at, math.min(at + 9, size - 1) do
    local b = byte(i)
    value = value + (b % 128) * scale
    if b < 128 then return value, i + 1 end
    scale = scale * 128
  end
  return nil, size
end

local function name_in(body)
  local size, name, at = body:length(), nil, 5
  if size < 7 then return nil end
  local byte = reader(body, size)
  while at < size do
    local tag, width
    tag, at = varint(byte, at, size)
    if tag == nil then return nil end
    local kind = tag % 8
    if kind == 0 then
      width, at = varint(byte, at, size)
      if width == nil then return nil end
    elseif kind == 2 then
      width, at = varint(byte, at, size)
      if width == nil or at + width > size then return nil end
      if tag == 10 then name = width > 0 and width < 1024 and body:getBytes(at, width) or "" end
      at = at + width
    elseif kind == 1 then at = at + 8
    elseif kind == 5 then at = at + 4
    else return nil end
  end
  return name
end

local function keep(handle, where, size, text)
  local metadata = handle:streamInfo():dynamicMetadata()
  if where == "trimtab.request" then metadata:set("trimtab", "kept", true) end
  if size <= LARGEST then metadata:set(where, "body", handle:base64Escape(text))
  else metadata:set(where, "bytes", size) end
end

-- The chunks go on as they come: nothing waits for the copy.
local function keep_chunks(handle, where)
  local parts, size = {}, 0
  for chunk in handle:bodyChunks() do
    size = size + chunk:length()
    parts = size <= LARGEST and parts or {}
    if size <= LARGEST then parts[#parts + 1] = chunk:getBytes(0, chunk:length()) end
  end
  if size > 0 then keep(handle, where, size, table.concat(parts)) end
end

function envoy_on_request(handle)
  local headers = handle:headers()
  headers:remove("x-model")
  local path = headers:get(":path") or ""
  local name, rest = path:match("^/v2/models/([^/?]+)([^?]*)")
  if name == nil and path:sub(1, #SERVICE) == SERVICE and ABOUT_A_MODEL[path:sub(#SERVICE + 1)] then
    local body = handle:body()
    if body ~= nil and body:length() > 0 then
      if body:getBytes(0, 1):byte() ~= 0 then
        handle:respond({[":status"] = "200", ["content-type"] = "application/grpc", ["grpc-status"] = "12",
                        ["grpc-accept-encoding"] = "identity",
                        ["grpc-message"] = "compressed gRPC requests are not routed: send them uncompressed"}, "")
        return
      end
      name = name_in(body)
      if path == SERVICE .. "ModelInfer" then
        keep(handle, "trimtab.request", body:length(),
             body:length() <= LARGEST and body:getBytes(0, body:length()) or "")
      end
    end
  end
  if name ~= nil and name:match("^[%w%._%-]+$") then
    handle:headers():add("x-model", name)  -- what was held before a yield in body() is out of scope after it
    handle:clearRouteCache()
  end
  if rest ~= nil and rest:sub(-6) == "/infer" then keep_chunks(handle, "trimtab.request") end
end

function envoy_on_response(handle)
  if handle:headers():get(":status"):sub(1, 1) ~= "2" then return end
  if handle:streamInfo():dynamicMetadata():get("trimtab") ~= nil then keep_chunks(handle, "trimtab.answer") end
end
"""
)

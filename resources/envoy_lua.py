"""The Lua that Envoy runs on each request: it writes `x-model`, by which the routes are found."""

# A client's own x-model is always removed: believed, it would send one model's requests by another model's split.
# In a protobuf the last field 1 wins, as it does in Triton, so all top-level fields are walked.
# A gRPC message compressed by its client (first byte 1) hides its name; its client is told to send it plain.
MODEL_NAME = """
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

function envoy_on_request(handle)
  local headers = handle:headers()
  headers:remove("x-model")
  local path = headers:get(":path") or ""
  local name = path:match("^/v2/models/([^/?]+)")
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
    end
  end
  if name ~= nil and name:match("^[%w%._%-]+$") then
    handle:headers():add("x-model", name)  -- what was held before a yield in body() is out of scope after it
    handle:clearRouteCache()
  end
end
"""

// An MCP server on its standard streams, with one tool.
import { createInterface } from "node:readline";

const den = {
  name: "den", description: "who lives there",
  inputSchema: { type: "object", properties: { of: { type: "string" } }, required: ["of"] },
};
const METHODS = {
  initialize: ({ protocolVersion }) => ({ protocolVersion, capabilities: { tools: {} }, serverInfo: { name: "woods", version: "1" } }),
  "tools/list": () => ({ tools: [den] }),
  "tools/call": ({ arguments: { of } }) => ({ content: [{ type: "text", text: `Cubs of the ${of}: 3` }] }),
};

for await (const line of createInterface({ input: process.stdin })) {
  const { id, method, params } = JSON.parse(line);
  if (id !== undefined) console.log(JSON.stringify({ jsonrpc: "2.0", id, result: METHODS[method](params) }));
}

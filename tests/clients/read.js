// Reads one WebSocket as told by the argument; prints its messages, then how it was closed.
const { WebSocket } = require("ws");
const asked = JSON.parse(process.argv[2]);
const socket = new WebSocket(asked.url, { maxPayload: 0 });
const found = [];

socket.on("open", () => {
  if (!asked.late) return;
  socket.pause();
  process.stdin.once("data", () => {
    socket.ping();
    socket.resume();
  });
});
socket.on("message", (data) => {
  if (asked.leaveAfter && found.length >= asked.leaveAfter) return;
  found.push(data.toString());
  if (asked.restEvery && found.length % asked.restEvery === 0) {
    socket.pause();
    setTimeout(() => socket.resume(), asked.restMs);
  }
  if (asked.leaveAfter && found.length === asked.leaveAfter) socket.close(1000, "enough");
});
socket.on("error", (error) => console.error(error));
socket.on("close", (code, reason) => {
  process.stdin.destroy();
  found.push(JSON.stringify({ code, reason: reason.toString() }));
  process.stdout.write(found.join("\n") + "\n");
});

// Where can a test break the operation off? An application of yours has no such file.
const net = require("node:net");

// Says which point the operation has come to, and waits for a word. Meanwhile the process can be killed or stopped.
module.exports = async function breakPoint(booking, point) {
  if (!process.env.BREAK_POINTS) return;
  const [host, port] = process.env.BREAK_POINTS.split(":");
  const word = await new Promise((resolve, reject) => {
    const director = net.connect(Number(port), host, () => director.write(`${process.pid} ${booking} ${point}\n`));
    director.on("data", (data) => resolve(data.toString().trim()));
    director.on("error", reject);
  });
  if (word === "go") return;
  throw Object.assign(new Error(`${word} at ${point}`), { isPanic: word === "panic" });
};

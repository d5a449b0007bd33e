// Rules for the studio's scripts: `make studio-check`. Types and undefined names are checked by tsc.
import js from "../.studio-tools/node_modules/@eslint/js/src/index.js";

const SOURCES = ["innerHTML", "outerHTML", "insertAdjacentHTML"];

export default [
  { linterOptions: { reportUnusedDisableDirectives: "error" } },
  js.configs.recommended,
  {
    rules: {
      "array-callback-return": "error",
      "consistent-return": "off", // tsc: noImplicitReturns
      curly: ["error", "multi-line"],
      eqeqeq: "error",
      "no-alert": "error",
      "no-console": ["error", { allow: ["warn", "error"] }],
      "no-else-return": "error",
      "no-eval": "error",
      "no-implied-eval": "error",
      "no-new-func": "error",
      "no-promise-executor-return": "error",
      "no-restricted-properties": ["error", ...SOURCES.map((property) => ({ property }))],
      "no-return-assign": ["error", "except-parens"],
      "no-self-compare": "error",
      "no-shadow": "error",
      "no-template-curly-in-string": "error",
      "no-throw-literal": "error",
      "no-undef": "off",
      "no-unreachable-loop": "error",
      "no-unused-expressions": ["error", { allowShortCircuit: true }],
      "no-useless-assignment": "error",
      "no-useless-concat": "error",
      "no-useless-rename": "error",
      "no-useless-return": "error",
      "no-var": "error",
      "object-shorthand": "error",
      "prefer-const": "error",
      "prefer-promise-reject-errors": "error",
      "require-atomic-updates": "error",
    },
  },
];

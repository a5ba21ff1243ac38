import js from "@eslint/js";
import angular from "angular-eslint";
import tseslint from "typescript-eslint";

export default tseslint.config(
  // The fresh app is built with the packed packages, which are not there when it is linted.
  { ignores: ["**/dist", "**/.angular", "e2e/fresh-app"] },
  {
    files: ["**/*.ts", "**/*.js"],
    extends: [js.configs.recommended, tseslint.configs.strictTypeChecked, tseslint.configs.stylisticTypeChecked],
    languageOptions: { parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname } },
    rules: {
      eqeqeq: "error",
      "@typescript-eslint/consistent-type-imports": "error",
      "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }],
      "@typescript-eslint/switch-exhaustiveness-check": "error",
    },
  },
  {
    files: ["angular/**/*.ts", "app/**/*.ts"],
    extends: [angular.configs.tsRecommended],
    processor: angular.processInlineTemplates,
    rules: {
      "@typescript-eslint/no-extraneous-class": ["error", { allowWithDecorator: true }],
      "@angular-eslint/component-class-suffix": "off",
    },
  },
  {
    // As they were written for the old service, and later tools may not like them.
    files: ["angular/test/old-pages/**/*.ts"],
    rules: {
      "@angular-eslint/prefer-inject": "off",
      "@typescript-eslint/consistent-type-imports": "off",
      "@typescript-eslint/no-confusing-void-expression": "off",
      "@typescript-eslint/no-misused-promises": "off",
    },
  },
  {
    files: ["angular/**/*.html", "app/**/*.html"],
    extends: [angular.configs.templateRecommended, angular.configs.templateAccessibility],
  },
  { files: ["**/*.js"], extends: [tseslint.configs.disableTypeChecked] },
);

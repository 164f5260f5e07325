import { defineConfig, type Plugin } from "vite";

/** The server writes the path it is mounted at into index.html; Vite's own server is mounted at /. */
const atRoot: Plugin = {
  name: "base-at-root",
  apply: "serve",
  transformIndexHtml: { order: "pre", handler: (html) => html.replace("__BATUTA_BASE__", "/") },
};

export default defineConfig({
  base: "./", // every address is relative: the dashboard works under any path
  plugins: [atRoot],
  build: {
    outDir: "../src/batuta/server/static",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    reportCompressedSize: false,
  },
  server: { proxy: { "/api": "http://127.0.0.1:8080" } },
});

/** Style sheets are imported for what esbuild makes of them: app.css. */
declare module "*.css";

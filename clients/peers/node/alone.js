// Express without any protection: what the peers of `cargo xtask bench peers` are measured against.

import express from "express";
import { pay, serve } from "./payments.js";

const app = express();
app.use(express.json());
app.post(["/payments", "/refunds"], pay);
serve(app);

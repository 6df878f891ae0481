"""The report page's style sheet: light and dark by the reader's setting, one column on a phone, plain on paper."""

CSS = """
:root{color-scheme:light dark;
--bg:#fff;--card:#f5f7fa;--ink:#161b22;--soft:#57606a;--line:#d5dae1;--accent:#0b63c5;--raw:#9db8d9;
--good:#0b6b3a;--bad:#b3261e;--warn:#8a5300;--goodbg:#e0f4e8;--badbg:#fde7e5;--warnbg:#fff2d9;
--p0:#00805c;--p1:#c84a00;--p2:#e69f00;--p3:#d6c420;--p4:#4aa3df;--p5:#0066a6;--p6:#a5508a;--p7:#7a5fb0;--p8:#646a73;--p9:#bcc2ca}
@media(prefers-color-scheme:dark){:root{
--bg:#0e1217;--card:#171d25;--ink:#e7ebf0;--soft:#9fabb8;--line:#2c3540;--accent:#6db3ff;--raw:#3d5878;
--good:#6fdca0;--bad:#ff9c93;--warn:#f4c16b;--goodbg:#12301f;--badbg:#3a1815;--warnbg:#33270e;
--p0:#1fa67c;--p1:#e8702a;--p2:#eeb33f;--p3:#e3d44a;--p4:#66b8ee;--p5:#3b8fd0;--p6:#cf85b3;--p7:#9a82cc;--p8:#8b929c;--p9:#4c5561}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:860px;margin:0 auto;padding:24px 20px 48px}
h1{font-size:1.6rem;line-height:1.25;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:1.15rem;margin:36px 0 8px;padding-top:12px;border-top:1px solid var(--line)}
h3{font-size:1rem;margin:18px 0 6px}
p{margin:6px 0}
a{color:var(--accent)}
.soft,figcaption,footer,caption{color:var(--soft);font-size:.875rem}
.lead{font-size:1.1rem;margin:10px 0 0}
.badge{display:inline-block;padding:2px 10px;border-radius:999px;font-weight:600;font-size:.875rem;white-space:nowrap;border:1px solid currentColor}
.good{color:var(--good);background:var(--goodbg)}.bad{color:var(--bad);background:var(--badbg)}.warn{color:var(--warn);background:var(--warnbg)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(180px,1fr));gap:10px;margin:20px 0 0;padding:0}
.tile{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:10px 12px}
.tile dt{color:var(--soft);font-size:.8125rem}.tile dd{margin:0;font-size:1.25rem;font-weight:600;line-height:1.3}
.tile dd small{display:block;font-weight:400;font-size:.8125rem;color:var(--soft)}
figure{margin:8px 0 0}figcaption{margin-top:4px}
svg{display:block;width:100%;height:auto;font:12px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
svg text{fill:var(--soft)}svg text.row{fill:var(--ink);font-size:13px}
svg .grid{stroke:var(--line);stroke-width:1}
svg polyline{fill:none;stroke-linejoin:round}
svg .raw{stroke:var(--raw);stroke-width:1.2}svg .smooth{stroke:var(--accent);stroke-width:2}
svg circle.points{fill:var(--bg);stroke:var(--p1);stroke-width:2}svg circle.raw,svg circle.smooth{fill:var(--accent)}
svg .mark line{stroke:var(--bad);stroke-width:1.2;stroke-dasharray:4 3}svg .mark path{fill:var(--bad)}
svg text.onbar{font-weight:600;fill:#fff}svg text.onbar:is(.p2,.p3,.p4,.p9){fill:#10151b}
@media(prefers-color-scheme:dark){svg text.onbar{fill:#0b0f14}svg text.onbar.p9{fill:#fff}}
.p0{fill:var(--p0)}.p1{fill:var(--p1)}.p2{fill:var(--p2)}.p3{fill:var(--p3)}.p4{fill:var(--p4)}
.p5{fill:var(--p5)}.p6{fill:var(--p6)}.p7{fill:var(--p7)}.p8{fill:var(--p8)}.p9{fill:var(--p9)}
.key{display:inline-block;width:12px;height:12px;border-radius:3px;margin-right:6px;vertical-align:-1px}
.key.p0{background:var(--p0)}.key.p1{background:var(--p1)}.key.p2{background:var(--p2)}.key.p3{background:var(--p3)}.key.p4{background:var(--p4)}
.key.p5{background:var(--p5)}.key.p6{background:var(--p6)}.key.p7{background:var(--p7)}.key.p8{background:var(--p8)}.key.p9{background:var(--p9)}
.key.line{height:3px;vertical-align:3px}.key.raw{background:var(--raw)}.key.smooth{background:var(--accent)}
.key.points{background:none;border:2px solid var(--p1);border-radius:50%}.key.markkey{background:var(--bad)}
.keys{display:flex;flex-wrap:wrap;gap:4px 16px;margin:6px 0 0;padding:0;list-style:none;font-size:.875rem}
.narrow{display:none}
.scroll{overflow-x:auto;margin-top:8px}
table{border-collapse:collapse;width:100%;font-size:.9rem;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:6px 12px 6px 0;border-bottom:1px solid var(--line);vertical-align:top}
th{font-weight:600;color:var(--soft);font-size:.8125rem;white-space:nowrap}
td.n,th.n{text-align:right;white-space:nowrap}
td.w{min-width:15rem}
ul.checks{list-style:none;padding:0;margin:10px 0}ul.checks li{padding:3px 0 3px 26px;position:relative}
ul.checks li b{position:absolute;left:0;width:20px;text-align:center}
.yes b{color:var(--good)}.no b{color:var(--bad)}.none b{color:var(--soft)}
code{font:.9em ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;background:var(--card);padding:1px 5px;border-radius:4px;overflow-wrap:anywhere}
ol,ul{padding-left:22px}
footer{margin-top:40px;border-top:1px solid var(--line);padding-top:12px}
:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
@media(max-width:600px){main{padding:16px 14px 32px}.wide{display:none}.narrow{display:block}h1{font-size:1.35rem}
.tiles{grid-template-columns:1fr 1fr}.tile dd{font-size:1.1rem}}
@media print{:root{color-scheme:light;--bg:#fff;--card:#fff;--ink:#000;--soft:#444;--line:#bbb}
main{max-width:none;padding:0}.wide{display:block}.narrow{display:none}h2{break-after:avoid}figure,.tile,tr{break-inside:avoid}
.scroll{overflow:visible}*{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
"""
